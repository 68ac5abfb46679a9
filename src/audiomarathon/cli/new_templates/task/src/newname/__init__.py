"""A task: is the tone high or low?"""
