"""Model families: a Hugging Face config becomes a KVGeometry; one file each."""
