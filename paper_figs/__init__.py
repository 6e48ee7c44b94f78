"""The figures and tables of the paper, and of the demo."""
