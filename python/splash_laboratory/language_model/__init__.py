"""What the experiments measure of language models, for experiments/peers/language_model.py."""
