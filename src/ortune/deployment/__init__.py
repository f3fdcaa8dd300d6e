"""What package targets share: running a package again, servers' formats, YAML."""
