"""How weights reach the policies that act."""
