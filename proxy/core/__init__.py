"""The pure core: values, tables and arithmetic. No async, no clock, no randomness, no logging, no third-party import.

What is true now is `lifecycle`; what to do next is `decide`; what an answer means is `classify`. Nothing here performs
anything: time, random draws and compiled expressions come in as values and plain callables.
"""
