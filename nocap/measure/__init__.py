"""What training costs: steps timed side by side, and a step, a forward or a text profiled part by
part."""
