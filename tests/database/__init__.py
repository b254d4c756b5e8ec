"""The replicated database at one station: branches, changesets, the applier, with processes that are killed."""
