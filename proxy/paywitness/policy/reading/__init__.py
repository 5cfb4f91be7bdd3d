"""Reading a policy file: from bytes to typed values with their locations.

document       YAML as nodes with their locations; bounds on size, depth and aliases
locations      file, line and column; the list of problems of a file
section        one mapping while it is read: typed values out, problems in
value_readers  readers of single values: text in, typed value out, or InvalidValue
expressions    JMESPath, bounded, and compiled to closures for speed
templates      texts with placeholders, filled from an operation
"""
