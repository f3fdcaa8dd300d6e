"""Why a search came to its answer: read off its run, nothing is measured again."""
