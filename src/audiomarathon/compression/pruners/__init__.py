"""Methods that drop audio tokens inside the LLM, one file a method."""
