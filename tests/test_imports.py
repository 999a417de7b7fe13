"""How nocap's files import each other, beyond what the import contract says."""

from graphlib import TopologicalSorter

import grimp


def test_no_file_imports_itself_by_others() -> None:
    """Imports inside functions and those for types count, too."""
    graph = grimp.build_graph("nocap")
    imports = {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}

    order = list(TopologicalSorter(imports).static_order())  # a circle is a CycleError

    assert len(order) == len(imports)
    assert order.index("nocap.options.attention") < order.index("nocap.config.run")
