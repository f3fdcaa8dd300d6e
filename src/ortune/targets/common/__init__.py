"""What package targets share: plain sessions, OpenVINO's format, running a package again."""
