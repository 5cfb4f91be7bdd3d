"""What every test stands on: the profile of the property tests. Fixtures live beside the rooms that need them."""

from hypothesis import settings

# A busy machine is not a counterexample, so single examples have no deadline: pytest's own timeout bounds each test.
settings.register_profile("paywitness", deadline=None, print_blob=True)
settings.load_profile("paywitness")
