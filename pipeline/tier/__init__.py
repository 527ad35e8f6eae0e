"""Rules of tiered memory: records, policy, budget, ranking and the plan of a migration."""
