"""What a person types: commands, tables, progress and exit codes; no arithmetic."""
