"""Rules of the interests: what somebody cares about, distilled from sessions."""
