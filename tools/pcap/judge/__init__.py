"""Whether the cluster kept its promises: tables to a judgement (api.py is the way in)."""
