//! Agent Skills: the `SKILL.md` format, validation and content digests.
//!
//! Lenient as the format's client guide asks for: what a reader can live with is a [`Severity::Warning`], what makes
//! other readers drop the skill is an [`Severity::Error`]. Where the meaning is clear (a byte order mark, an unquoted
//! colon in a line of prose) `SKILL.md` is repaired; [`Checked::files`] has the bytes to deliver.

mod digest;
mod frontmatter;
mod paths;
mod validate;

pub use digest::{FileDigest, tree_digest};
pub use frontmatter::{FrontMatter, split};
pub use validate::{Checked, CheckedFile, File, check};

/// The file that makes a folder a skill.
pub const SKILL_FILE: &str = "SKILL.md";
/// Longest front matter block, in bytes.
pub const MAX_FRONT_MATTER_BYTES: usize = 64 << 10;
/// Most files of one skill.
pub const MAX_FILES: usize = 128;
/// Most bytes of all files of one skill together; they have to fit one `ConfigMap` with their manifest.
pub const MAX_TOTAL_BYTES: usize = 900 << 10;
/// Longest description, in characters.
pub const MAX_DESCRIPTION_CHARS: usize = 1024;
/// Longest name, in characters.
pub const MAX_NAME_CHARS: usize = 64;
/// Longest compatibility text, in characters.
pub const MAX_COMPATIBILITY_CHARS: usize = 500;
/// Longest path, in bytes.
pub const MAX_PATH_BYTES: usize = 256;
/// Most parts of a path.
pub const MAX_PATH_DEPTH: usize = 16;
/// Most defects that are reported of one skill.
pub const MAX_DEFECTS: usize = 32;

/// Whether a defect keeps the skill from being published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It is published all the same.
    Warning,
    /// It is not published; the last valid content stays.
    Error,
}

/// What is wrong, as one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// No `SKILL.md` at the root of the folder.
    SkillFileMissing,
    /// `SKILL.md` is not UTF-8 or has a NUL.
    NotText,
    /// `SKILL.md` does not begin with a front matter block.
    FrontMatterMissing,
    /// The front matter block has no closing fence.
    FrontMatterUnclosed,
    /// The front matter block is too long.
    FrontMatterTooLong,
    /// The front matter does not parse as YAML.
    FrontMatterInvalid,
    /// The front matter uses YAML that other readers refuse (anchors, aliases, tags).
    FrontMatterUnsafe,
    /// A line was quoted to make the front matter parse.
    FrontMatterRepaired,
    /// A field that has to be text is not.
    FieldNotText,
    /// A field that the format does not have.
    FieldUnknown,
    /// No name.
    NameMissing,
    /// A name that is not of the format's form.
    NameInvalid,
    /// A name that differs from the folder's.
    NameMismatch,
    /// No description, or an empty one.
    DescriptionMissing,
    /// A description that is too long.
    DescriptionTooLong,
    /// A description that loses text to a YAML comment.
    DescriptionCut,
    /// A compatibility text that is empty or too long.
    CompatibilityInvalid,
    /// A value in `metadata` that is not text.
    MetadataNotText,
    /// A byte order mark was removed.
    ByteOrderMark,
    /// Nothing after the front matter.
    BodyEmpty,
    /// A path that may not be.
    PathInvalid,
    /// Two files with one path, or a file where another file needs a folder.
    PathClash,
    /// Too many files or bytes.
    TooLarge,
    /// Content that does not decode.
    ContentInvalid,
}

impl Code {
    /// The word as it stands in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SkillFileMissing => "SkillFileMissing",
            Self::NotText => "NotText",
            Self::FrontMatterMissing => "FrontMatterMissing",
            Self::FrontMatterUnclosed => "FrontMatterUnclosed",
            Self::FrontMatterTooLong => "FrontMatterTooLong",
            Self::FrontMatterInvalid => "FrontMatterInvalid",
            Self::FrontMatterUnsafe => "FrontMatterUnsafe",
            Self::FrontMatterRepaired => "FrontMatterRepaired",
            Self::FieldNotText => "FieldNotText",
            Self::FieldUnknown => "FieldUnknown",
            Self::NameMissing => "NameMissing",
            Self::NameInvalid => "NameInvalid",
            Self::NameMismatch => "NameMismatch",
            Self::DescriptionMissing => "DescriptionMissing",
            Self::DescriptionTooLong => "DescriptionTooLong",
            Self::DescriptionCut => "DescriptionCut",
            Self::CompatibilityInvalid => "CompatibilityInvalid",
            Self::MetadataNotText => "MetadataNotText",
            Self::ByteOrderMark => "ByteOrderMark",
            Self::BodyEmpty => "BodyEmpty",
            Self::PathInvalid => "PathInvalid",
            Self::PathClash => "PathClash",
            Self::TooLarge => "TooLarge",
            Self::ContentInvalid => "ContentInvalid",
        }
    }
}

/// One thing that is wrong with a skill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defect {
    /// Whether it keeps the skill from being published.
    pub severity: Severity,
    /// What is wrong, as one word.
    pub code: Code,
    /// Where: a path, `SKILL.md:LINE`, or `SKILL.md:FIELD`.
    pub place: String,
    /// What to do, as a sentence without a period.
    pub message: String,
}

impl Defect {
    /// A defect that keeps the skill from being published.
    pub fn error(code: Code, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, code, place: place.into(), message: message.into() }
    }

    /// A defect that a reader can live with.
    pub fn warning(code: Code, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, code, place: place.into(), message: message.into() }
    }
}

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", self.code.as_str(), self.place, self.message)
    }
}
