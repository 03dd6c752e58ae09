"""The operator families: what each version step changes, as rows of the conversion table."""
