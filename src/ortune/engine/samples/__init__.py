"""What an engine is given beside tensors: pictures, and samples that it is scored on."""
