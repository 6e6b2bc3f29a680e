"""What each method learns, on real data: accuracy, RAM, MACs and seconds."""
