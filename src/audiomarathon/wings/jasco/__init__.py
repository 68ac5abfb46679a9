"""JASCO, "What Are They Doing?": does a model use the sound and the speech of a clip together?"""
