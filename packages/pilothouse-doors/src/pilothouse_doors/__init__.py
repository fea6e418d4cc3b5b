"""Front ends and editors on sessions of Claude Code: AG-UI, Vercel's AI SDK UI, ACP."""
