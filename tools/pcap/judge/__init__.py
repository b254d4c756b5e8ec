"""Whether the cluster kept its guarantees: tables to a judgement (api.py is the way in)."""
