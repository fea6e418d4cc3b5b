"""What is measured: one program a subject, run in a fresh process for every sample. They share `clock` and no state."""
