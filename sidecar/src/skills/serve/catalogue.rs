//! The catalogue: a line for each skill, within a budget.

use std::fmt::Write as _;

use super::view::{Shown, View};

/// How much of a skill stands in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Full,
    Short,
    Name,
    Omitted,
}

/// Levels as they stand in metrics.
pub const LEVELS: [&str; 4] = ["full", "short", "name", "omitted"];

/// Room for the line that says how many are not there.
const TAIL_BYTES: usize = 64;
const INTRODUCTION: &str = "Skills of this agent. If a task matches one of them, call skill_load with its name first; \
                            skill_read gives its files.\n";

/// The text, and how many skills stand there at each of the [`LEVELS`].
pub struct Catalogue {
    /// See the module.
    pub text: String,
    /// Counts.
    pub counts: [usize; 4],
}

/// Those with a higher priority come first, then by name. What comes last is shortened first: to the first sentence, to
/// the name, and then away.
pub fn catalogue(view: &View) -> Catalogue {
    let mut skills: Vec<&Shown> = view.usable().collect();
    if skills.is_empty() {
        return Catalogue { text: String::new(), counts: [0; 4] };
    }
    skills.sort_by(|a, b| b.held.skill.priority.cmp(&a.held.skill.priority).then_with(|| a.name().cmp(b.name())));
    let lines: Vec<[String; 4]> = skills
        .iter()
        .map(|s| {
            let (name, description) = (s.name(), s.held.tree.description());
            let sentence = description.find(". ").map_or(description.as_str(), |end| &description[..=end]);
            [
                format!("- {name}: {description}\n"),
                format!("- {name}: {sentence}\n"),
                format!("- {name}\n"),
                String::new(),
            ]
        })
        .collect();
    let mut levels = vec![Level::Full; lines.len()];
    let room = view.budget.saturating_sub(INTRODUCTION.len() + TAIL_BYTES);
    let mut bytes: usize = lines.iter().map(|l| l[0].len()).sum();
    for level in [Level::Short, Level::Name, Level::Omitted] {
        for (line, at) in lines.iter().zip(&mut levels).rev() {
            if bytes <= room {
                break;
            }
            bytes = bytes - line[*at as usize].len() + line[level as usize].len();
            *at = level;
        }
    }
    let mut text = INTRODUCTION.to_owned();
    let mut counts = [0; 4];
    for (line, level) in lines.iter().zip(levels) {
        text.push_str(&line[level as usize]);
        counts[level as usize] += 1;
    }
    if counts[Level::Omitted as usize] > 0 {
        let _ = writeln!(text, "{} more: use skills_list.", counts[Level::Omitted as usize]);
    }
    Catalogue { text, counts }
}
