"""What each region of a network costs in accuracy and brings in time, alone, at a precision."""
