"""Pages that open anywhere: one HTML file with its style, scripts and data, and no network."""
