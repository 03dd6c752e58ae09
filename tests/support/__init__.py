"""What tests share: the oracle, the judge, random models, planted faults."""
