"""Measurements of actor meshes beside Ray's and Monarch's actors."""
