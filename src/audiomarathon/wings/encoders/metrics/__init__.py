"""Figures that only probes need."""
