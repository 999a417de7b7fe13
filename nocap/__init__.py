"""nocap: a bench for GPT pretraining-speed ablations whose results can be trusted."""

__version__ = "0.1.0"
