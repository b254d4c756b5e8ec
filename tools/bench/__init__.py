"""Wall-clock benchmarks in a lab, peers side by side: ``plan`` runs the cells, ``cell`` measures one, ``table`` compares them."""
