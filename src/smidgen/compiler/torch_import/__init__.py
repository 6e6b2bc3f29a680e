"""A torch model as graphs: capture by torch.export, one rule for each of its operators."""
