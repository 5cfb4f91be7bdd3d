"""Request and response bodies: read into one kind of tree, and single values written into them by a splice.

bounds  bytes, growth, depth and number of values, held before a body is parsed
tree    JSON, nested forms and XML as a tree of dicts, lists and scalars; values by dotted path, read and spliced
xml     XML documents: read, spliced, written
"""
