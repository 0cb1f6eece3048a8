//! Agent Skills: the `SKILL.md` format, validation and content digests.
