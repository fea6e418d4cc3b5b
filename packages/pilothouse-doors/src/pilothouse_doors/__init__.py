"""Where people meet sessions of Claude Code: front ends (AG-UI, Vercel's AI SDK UI), editors (ACP), notifications."""
