//! The front matter of `SKILL.md`: fences, YAML, the six fields of the format.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    Code, Defect, MAX_COMPATIBILITY_CHARS, MAX_DESCRIPTION_CHARS, MAX_FRONT_MATTER_BYTES, MAX_NAME_CHARS, SKILL_FILE,
};

/// The fields of the format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontMatter {
    /// Name that `SKILL.md` gives itself.
    pub name: String,
    /// What the skill does and when to use it, trimmed.
    pub description: String,
    /// Licence name or bundled file.
    pub license: Option<String>,
    /// What the skill needs of its surroundings.
    pub compatibility: Option<String>,
    /// Extras for particular readers; only those that are text.
    pub metadata: BTreeMap<String, String>,
    /// Tools the skill asks to be allowed.
    pub allowed_tools: Vec<String>,
}

/// The parsed block.
pub(super) struct Parsed {
    /// Its fields.
    pub front: FrontMatter,
    /// The whole of `SKILL.md` when it had to be repaired.
    pub repaired: Option<String>,
}

/// Reads the front matter of `text`. `None` when an error among the defects makes the skill unusable.
pub(super) fn parse(text: &str, folder: &str, defects: &mut Vec<Defect>) -> Option<Parsed> {
    let block = match block(text) {
        Ok(block) => block,
        Err(defect) => {
            defects.push(defect);
            return None;
        }
    };
    let source = text.get(block.start..block.end).unwrap_or_default();
    if text.get(block.body..).unwrap_or_default().trim().is_empty() {
        defects.push(Defect::warning(
            Code::BodyEmpty,
            SKILL_FILE,
            "there is nothing after the front matter: write the instructions there",
        ));
    }
    let (map, repaired_source) = match yaml(source) {
        Ok(map) => (map, None),
        Err(first) => {
            let repaired = (first.code == Code::FrontMatterInvalid).then(|| quote_prose(source)).flatten();
            if let Some((text, lines)) = repaired
                && let Ok(map) = yaml(&text)
            {
                for line in lines {
                    defects.push(Defect::warning(
                        Code::FrontMatterRepaired,
                        format!("{SKILL_FILE}:{}", line + 2),
                        "the value has a colon and no quotes, which is not YAML: it was quoted; put quotes around it",
                    ));
                }
                (map, Some(text))
            } else {
                defects.push(first);
                return None;
            }
        }
    };
    cut_by_comment(source, defects);
    let before = defects.iter().filter(|d| d.severity == super::Severity::Error).count();
    let front = fields(&map, folder, defects);
    if defects.iter().filter(|d| d.severity == super::Severity::Error).count() > before {
        return None;
    }
    let repaired = repaired_source.map(|source| {
        let head = text.get(..block.start).unwrap_or_default();
        let tail = text.get(block.end..).unwrap_or_default();
        format!("{head}{source}{tail}")
    });
    Some(Parsed { front, repaired })
}

/// All fields of the front matter of a `SKILL.md` that was [checked](super::check), and the instructions after it.
/// `None` when it has none that parses.
pub fn split(text: &str) -> Option<(Map<String, Value>, &str)> {
    let block = block(text).ok()?;
    let fields = yaml(text.get(block.start..block.end)?).ok()?;
    Some((fields, text.get(block.body..)?))
}

struct Block {
    start: usize,
    end: usize,
    body: usize,
}

fn is_fence(line: &str) -> bool {
    line.trim_end_matches(['\n', '\r', ' ', '\t']) == "---"
}

fn block(text: &str) -> Result<Block, Defect> {
    let mut lines = text.split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    if !is_fence(first) {
        let message = if first.contains('\r') && !first.ends_with("\r\n") {
            "the lines end with a lone carriage return: end them with a line feed"
        } else if first.trim().is_empty() && !text.trim().is_empty() {
            "the first line is empty: begin the file with a line of three dashes"
        } else {
            "the file does not begin with a line of exactly three dashes: put name and description in a block between two such lines"
        };
        return Err(Defect::error(Code::FrontMatterMissing, format!("{SKILL_FILE}:1"), message));
    }
    let start = first.len();
    let mut end = start;
    for line in lines {
        if is_fence(line) {
            return Ok(Block { start, end, body: end + line.len() });
        }
        end += line.len();
        if end - start > MAX_FRONT_MATTER_BYTES {
            let message =
                format!("the front matter is longer than {MAX_FRONT_MATTER_BYTES} bytes: shorten it or close it");
            return Err(Defect::error(Code::FrontMatterTooLong, format!("{SKILL_FILE}:1"), message));
        }
    }
    Err(Defect::error(
        Code::FrontMatterUnclosed,
        format!("{SKILL_FILE}:1"),
        "the front matter has no closing line of three dashes: add it after the last field",
    ))
}

fn yaml(source: &str) -> Result<Map<String, Value>, Defect> {
    for (number, line) in source.lines().enumerate() {
        let value = line.split_once(':').map_or(line, |(_, value)| value).trim_start();
        if line.starts_with(|c: char| c.is_ascii_alphabetic()) && value.starts_with(['!', '&']) {
            return Err(Defect::error(
                Code::FrontMatterUnsafe,
                format!("{SKILL_FILE}:{}", number + 2),
                "YAML tags and anchors are refused by other readers: write the value out, in quotes if it begins with ! or &",
            ));
        }
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_anchors: 0, max_aliases: 0, max_depth: 16, max_nodes: 4096 },
    };
    match serde_saphyr::from_str_with_options::<Value>(source, options) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Defect::error(
            Code::FrontMatterInvalid,
            format!("{SKILL_FILE}:2"),
            "the front matter is no map of fields: write name: and description: there",
        )),
        Err(error) => {
            let line = error.location().map_or(1, |l| usize::try_from(l.line()).unwrap_or(1));
            let text = error.without_snippet().to_string();
            let text = text.lines().next().unwrap_or_default();
            let code = if text.contains("budget") { Code::FrontMatterUnsafe } else { Code::FrontMatterInvalid };
            Err(Defect::error(code, format!("{SKILL_FILE}:{}", line + 1), format!("the YAML does not parse: {text}")))
        }
    }
}

/// Quotes the plain values of top-level lines that have a colon in prose. Only where the meaning is clear: values that
/// begin like other YAML, or have a comment, are left alone. Gives the new text and the lines (from 0) that changed.
fn quote_prose(source: &str) -> Option<(String, Vec<usize>)> {
    let mut text = String::with_capacity(source.len() + 16);
    let mut changed = Vec::new();
    for (number, line) in source.split_inclusive('\n').enumerate() {
        let content = line.trim_end_matches(['\n', '\r']);
        let ending = line.get(content.len()..).unwrap_or_default();
        let quoted = content.split_once(": ").and_then(|(key, value)| {
            let value = value.trim();
            let plain_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
            let prose = value.starts_with(char::is_alphanumeric) && !value.contains(" #");
            let colon = value.contains(": ") || value.ends_with(':');
            (plain_key && prose && colon)
                .then(|| format!("{key}: \"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"")))
        });
        match quoted {
            Some(quoted) => {
                text.push_str(&quoted);
                changed.push(number);
            }
            None => text.push_str(content),
        }
        text.push_str(ending);
    }
    (!changed.is_empty()).then_some((text, changed))
}

fn cut_by_comment(source: &str, defects: &mut Vec<Defect>) {
    for (number, line) in source.lines().enumerate() {
        if let Some(value) = line.strip_prefix("description:") {
            let value = value.trim_start();
            if value.starts_with(char::is_alphanumeric) && value.contains(" #") {
                defects.push(Defect::warning(
                    Code::DescriptionCut,
                    format!("{SKILL_FILE}:{}", number + 2),
                    "YAML takes what follows \" #\" as a comment: put quotes around the description",
                ));
            }
        }
    }
}

fn place(field: &str) -> String {
    format!("{SKILL_FILE}:{field}")
}

fn text<'a>(map: &'a Map<String, Value>, field: &str, defects: &mut Vec<Defect>) -> Option<&'a str> {
    match map.get(field) {
        None => None,
        Some(Value::String(text)) => Some(text),
        Some(_) => {
            defects.push(Defect::error(
                Code::FieldNotText,
                place(field),
                "the value is not text for YAML: put quotes around it",
            ));
            Some("")
        }
    }
}

fn fields(map: &Map<String, Value>, folder: &str, defects: &mut Vec<Defect>) -> FrontMatter {
    let mut front = FrontMatter::default();
    match text(map, "name", defects) {
        None => defects.push(Defect::error(Code::NameMissing, place("name"), format!("add name: {folder}"))),
        Some(name) => {
            name_rules(name, folder, defects);
            front.name = name.into();
        }
    }
    let had = map.get("description").is_none_or(Value::is_string);
    let description = text(map, "description", defects).unwrap_or_default().trim();
    if description.is_empty() && had {
        defects.push(Defect::error(
            Code::DescriptionMissing,
            place("description"),
            "add a description: what the skill does and when to use it",
        ));
    }
    let length = description.chars().count();
    if length > MAX_DESCRIPTION_CHARS {
        let message = format!("the description has {length} characters, at most {MAX_DESCRIPTION_CHARS} are possible");
        defects.push(Defect::error(Code::DescriptionTooLong, place("description"), message));
    }
    front.description = description.into();
    front.license = text(map, "license", defects).map(Into::into);
    front.compatibility = text(map, "compatibility", defects).map(Into::into);
    if let Some(text) = &front.compatibility
        && (text.trim().is_empty() || text.chars().count() > MAX_COMPATIBILITY_CHARS)
    {
        let message = format!("compatibility should have 1 to {MAX_COMPATIBILITY_CHARS} characters");
        defects.push(Defect::warning(Code::CompatibilityInvalid, place("compatibility"), message));
    }
    metadata(map.get("metadata"), &mut front, defects);
    match map.get("allowed-tools") {
        Some(Value::String(tools)) => front.allowed_tools = split_tools(tools),
        Some(Value::Array(tools)) => {
            front.allowed_tools = tools.iter().filter_map(Value::as_str).map(Into::into).collect();
        }
        None | Some(Value::Null) => {}
        Some(_) => defects.push(Defect::warning(
            Code::FieldNotText,
            place("allowed-tools"),
            "the value should be text with spaces between the tools",
        )),
    }
    for field in map.keys() {
        if !["name", "description", "license", "compatibility", "metadata", "allowed-tools"].contains(&field.as_str()) {
            let field: String = field.chars().take(64).collect();
            let message = "the format has no such field: readers may ignore it; put it below metadata";
            defects.push(Defect::warning(Code::FieldUnknown, place(&field), message));
        }
    }
    front
}

fn name_rules(name: &str, folder: &str, defects: &mut Vec<Defect>) {
    if name.is_empty() {
        if !defects.iter().any(|d| d.code == Code::FieldNotText && d.place == place("name")) {
            defects.push(Defect::error(Code::NameMissing, place("name"), format!("add name: {folder}")));
        }
        return;
    }
    let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    if !plain || name.starts_with('-') || name.ends_with('-') || name.contains("--") || name.len() > MAX_NAME_CHARS {
        let message = format!(
            "the name may have 1 to {MAX_NAME_CHARS} of a-z, 0-9 and single dashes between them: readers drop others; write name: {folder}"
        );
        defects.push(Defect::error(Code::NameInvalid, place("name"), message));
    } else if name != folder {
        let message =
            format!("the name \"{name}\" is not the folder's, which is \"{folder}\": some readers skip such a skill");
        defects.push(Defect::warning(Code::NameMismatch, place("name"), message));
    }
}

fn metadata(value: Option<&Value>, front: &mut FrontMatter, defects: &mut Vec<Defect>) {
    match value {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) => {
            for (key, value) in map {
                if let Value::String(text) = value {
                    front.metadata.insert(key.clone(), text.clone());
                } else {
                    let message = format!("metadata.{key} is not text for YAML: put quotes around it");
                    defects.push(Defect::warning(Code::MetadataNotText, place("metadata"), message));
                }
            }
        }
        Some(_) => defects.push(Defect::warning(
            Code::MetadataNotText,
            place("metadata"),
            "metadata should be a map from text to text",
        )),
    }
}

/// Splits at spaces outside parentheses: `Bash(git add:*) Read` has two tools.
fn split_tools(text: &str) -> Vec<String> {
    let mut depth = 0_i32;
    text.split(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth <= 0 && (c.is_whitespace() || c == ',')
    })
    .filter(|t| !t.is_empty())
    .map(Into::into)
    .collect()
}
