// Nothing yet: lets a shared library exist before its rooms have sources.
