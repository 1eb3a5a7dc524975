"""Small graphs that a generation loop is made of beside the decoder: sampler, end of generation, updates of caches."""
