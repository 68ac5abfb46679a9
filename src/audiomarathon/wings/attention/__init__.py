"""Commands and pictures of the attention that runs captured. The capturing code is in the room `engine`."""
