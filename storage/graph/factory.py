"""The graph that the settings ask for."""

from __future__ import annotations

from isotherm.pipeline.brain.graph_port import GraphPort
from isotherm.pipeline.errors import RejectedError
from isotherm.storage.graph import helix_client
from isotherm.storage.graph.pair import PairGraph
from isotherm.storage.graph.postgres import PostgresGraph
from isotherm.storage.settings import Settings


def graph_of(settings: Settings) -> GraphPort:
    """PostgreSQL's own graph; HelixDB at its URL; or HelixDB embedded in the graph worker, with PostgreSQL's beside it.

    Nothing is connected before it is used. Raises: RejectedError when HelixDB is asked for and not installed.
    """
    if settings.graph == "postgres":
        return PostgresGraph()
    helix = _helix(settings)
    return helix if settings.helix_url is not None else PairGraph(helix, PostgresGraph())


def _helix(settings: Settings) -> GraphPort:
    try:
        from isotherm.storage.graph.helix import HelixGraph  # noqa: PLC0415 - only where the extra is installed
    except ImportError:
        raise RejectedError("HelixDB is not installed: pip install 'isotherm[helix]'") from None
    if settings.helix_url is not None:
        key = None if settings.helix_key is None else settings.helix_key.get_secret_value()
        return HelixGraph(helix_client.ServerClient(settings.helix_url, key))
    return HelixGraph(helix_client.EmbeddedClient(settings.helix_dir or settings.data_dir / "helix"))
