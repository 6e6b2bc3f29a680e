"""From a torch model to a program. The only package that needs torch and ortools."""
