"""Settings of the suite: property tests draw the same examples in every run."""

from hypothesis import settings

settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=60)
settings.load_profile("suite")
