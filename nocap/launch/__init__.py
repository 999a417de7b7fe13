"""Starting runs: one, a grid of them, on this machine or a cluster's; and the worker at the other
end."""
