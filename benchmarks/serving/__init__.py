"""What serving costs: beside the peers' servers, over the engine, under overload and for long."""
