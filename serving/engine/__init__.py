"""The only code that names vLLM internals; import its modules one by one."""
