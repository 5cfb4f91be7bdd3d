"""`paywitness policy new` and `policy schema`.

draft        the text of a starting policy; unknown facts get the value that cannot charge twice
openapi      a draft from an OpenAPI file
json_schema  the JSON Schema of a policy file, for editors
"""
