//! Sources as tokens, and what a file imports, defines and says, without its tests.

use std::fs;
use std::path::Path;

/// Its names, from that of its crate down.
pub type Module = Vec<String>;

#[derive(Clone)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

/// A `use` of one name, or a path in the code.
#[derive(Clone)]
pub struct Import {
    pub module: Module,
    pub path: Vec<String>,
    /// The name that it binds, `*` for all; none for a path in the code.
    pub name: Option<String>,
    pub line: usize,
}

pub struct Definition {
    pub module: Module,
    pub keyword: String,
    pub name: String,
    /// It stands in a module, not in a function or a trait.
    pub is_item: bool,
    pub is_associated: bool,
}

pub struct File {
    /// From the root of the tree.
    pub path: String,
    pub module: Module,
    pub imports: Vec<Import>,
    pub definitions: Vec<Definition>,
    /// Comments and strings.
    pub prose: Vec<Token>,
    /// Modules in files of their own that only tests have.
    tests: Vec<Module>,
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

impl Token {
    fn is_word(&self) -> bool {
        self.text.starts_with(is_letter) && self.text.ends_with(is_letter)
    }

    fn is_prose(&self) -> bool {
        self.text.starts_with("//") || self.text.contains('"')
    }
}

/// Length of the token at the start of `text`.
fn token_length(text: &str) -> usize {
    let letters = |text: &str| text.find(|c| !is_letter(c)).unwrap_or(text.len());
    let until = |from: usize, end: &str| {
        text[from..].find(end).map_or(text.len(), |at| from + at + end.len())
    };
    let word = letters(text);
    let (prefix, rest) = text.split_at(word);
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    if text.starts_with("//") {
        return until(0, "\n");
    }
    if ["r", "br", "cr"].contains(&prefix) && rest[hashes..].starts_with('"') {
        return until(word + hashes + 1, &format!("\"{}", "#".repeat(hashes)));
    }
    if ["", "b", "c"].contains(&prefix) && rest.starts_with(['"', '\'']) {
        let inner = letters(&rest[1..]);
        if rest.starts_with('\'') && inner > 0 && !rest[1 + inner..].starts_with('\'') {
            return word + 1 + inner;
        }
        let (mut chars, quote) = (rest[1..].char_indices(), &rest[..1]);
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => drop(chars.next()),
                _ if quote.starts_with(c) => return word + at + 2,
                _ => {}
            }
        }
    }
    match word {
        0 if text.starts_with("::") => 2,
        0 => text.chars().next().map_or(0, char::len_utf8),
        _ => word,
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let (mut at, mut line, mut found) = (0, 1, Vec::new());
    while at < text.len() {
        let token = &text[at..at + token_length(&text[at..])];
        if !token.trim().is_empty() {
            found.push(Token { text: token.to_owned(), line });
        }
        line += token.matches('\n').count();
        at += token.len();
    }
    found
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |it| &it.text)
}

/// The index behind the group that opens at `at`.
fn group_end(tokens: &[Token], mut at: usize) -> usize {
    let mut depth = 0;
    loop {
        match text(tokens, at) {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            "" => return at,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
}

/// Reads a condition of `cfg` at `at`: whether it holds in tests, fuzzing or models alone.
fn is_for_tests(tokens: &[Token], at: &mut usize) -> bool {
    let name = text(tokens, *at);
    *at += 1;
    match text(tokens, *at) {
        "(" => {
            let mut parts = Vec::new();
            while text(tokens, *at) != ")" {
                *at += 1;
                parts.push(is_for_tests(tokens, at));
            }
            *at += 1;
            let are = |it: &bool| *it;
            (name == "all" && parts.iter().any(are)) || (name == "any" && parts.iter().all(are))
        }
        "=" => {
            *at += 2;
            text(tokens, *at - 1) == "\"testing\""
        }
        _ => ["test", "fuzzing", "loom"].contains(&name),
    }
}

/// The index behind the item, statement or field at `at`.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    let (mut ends_with_brace, mut ends_with_comma) = (true, true);
    loop {
        match text(tokens, at) {
            "" | ")" | "]" | "}" => return at,
            ";" => return at + 1,
            "," if ends_with_comma => return at + 1,
            "{" if ends_with_brace => return group_end(tokens, at),
            "(" | "[" | "{" => at = group_end(tokens, at) - 1,
            "fn" | "impl" | "struct" | "enum" | "trait" => ends_with_comma = false,
            "use" | "let" | "static" => (ends_with_brace, ends_with_comma) = (false, false),
            "=" => ends_with_brace = false,
            _ => {}
        }
        at += 1;
    }
}

/// The tokens without those for tests alone, and the modules of these that have files; no tokens
/// where all of them are for tests.
fn product(tokens: &[Token]) -> (Vec<Token>, Vec<String>) {
    let (mut kept, mut tests, mut at) = (Vec::new(), Vec::new(), 0);
    while at < tokens.len() {
        let open = if text(tokens, at + 1) == "!" { at + 2 } else { at + 1 };
        let is_cfg = text(tokens, at) == "#" && text(tokens, open + 1) == "cfg";
        if !is_cfg || !is_for_tests(tokens, &mut (open + 3)) {
            kept.push(tokens[at].clone());
            at += 1;
        } else if open == at + 2 {
            return (Vec::new(), tests);
        } else {
            at = item_end(tokens, group_end(tokens, open));
            if text(tokens, at - 3) == "mod" {
                tests.push(tokens[at - 2].text.clone());
            }
        }
    }
    (kept, tests)
}

impl File {
    fn parse(path: &str, module: Module, source: &str) -> Self {
        let (tokens, tests) = product(&tokens(source));
        let (prose, code) = tokens.into_iter().partition(Token::is_prose);
        let own = |it| [&*module, &[it]].concat();
        let tests = tests.into_iter().map(own).collect();
        let (path, imports, definitions) = (path.to_owned(), Vec::new(), Vec::new());
        let mut file = Self { path, module, imports, definitions, prose, tests };
        let is_test = |name: &String| ["test", "tests"].contains(&&**name);
        if code.is_empty() || file.module.iter().any(is_test) {
            file.tests.push(file.module.clone());
        }
        file.declare(&code);
        file
    }

    fn declare(&mut self, code: &[Token]) {
        let text = |at: usize| text(code, at);
        let is_word = |at: usize| code.get(at).is_some_and(Token::is_word);
        // What each open brace is of, `mod`, `impl` or else; and what the next one will be of.
        let (mut braces, mut pending, mut module, mut at) =
            (Vec::new(), "", self.module.clone(), 0);
        while at < code.len() {
            let (line, before) = (code[at].line, if at == 0 { "" } else { text(at - 1) });
            let is_definition = match text(at) {
                "struct" | "enum" | "trait" | "type" | "fn" | "static" | "mod" => is_word(at + 1),
                "const" => text(at + 2) == ":",
                "union" => text(at + 2) == "{",
                "macro_rules" => true,
                _ => false,
            };
            if is_definition {
                let name = text(if is_word(at + 1) { at + 1 } else { at + 2 }).to_owned();
                let (is_item, is_associated) =
                    (braces.iter().all(|it| *it == "mod"), braces.last() == Some(&"impl"));
                let (keyword, module) = (text(at).to_owned(), module.clone());
                let new = Definition { module, keyword, name, is_item, is_associated };
                self.definitions.push(new);
            }
            match text(at) {
                "use" if text(at + 1) != "<" => {
                    let module = module.clone();
                    let start = Import { module, path: Vec::new(), name: None, line };
                    at = self.read_use(code, at + 1, start);
                    continue;
                }
                "mod" if text(at + 2) == "{" => {
                    module.push(text(at + 1).to_owned());
                    pending = "mod";
                }
                "impl" | "trait" => pending = "impl",
                ";" => pending = "",
                "{" => braces.push(std::mem::take(&mut pending)),
                "}" if braces.pop() == Some("mod") => drop(module.pop()),
                _ => {}
            }
            let is_field = before == "." && text(at - 2) != ".";
            let is_start = is_word(at) && !is_field && !["::", "$"].contains(&before);
            let is_global = text(at) == "::" && before != ">" && !(at > 0 && is_word(at - 1));
            if !is_start && !is_global && (before, text(at)) != ("$", "crate") {
                at += 1;
                continue;
            }
            let mut path = vec![if is_global { "" } else { text(at) }.to_owned()];
            at += usize::from(!is_global);
            while text(at) == "::" && is_word(at + 1) {
                path.push(text(at + 1).to_owned());
                at += 2;
            }
            at += usize::from(is_global && path.len() == 1);
            if path.len() > 1 {
                self.imports.push(Import { module: module.clone(), path, name: None, line });
            }
        }
    }

    /// Reads a tree of `use` at `at`, whose start is known; returns the index behind it.
    fn read_use(&mut self, code: &[Token], mut at: usize, mut import: Import) -> usize {
        loop {
            match text(code, at) {
                "{" => {
                    while text(code, at) != "}" {
                        at += 1;
                        if text(code, at) != "}" {
                            at = self.read_use(code, at, import.clone());
                        }
                    }
                    return at + 1;
                }
                "::" if !import.path.is_empty() => {}
                "::" => import.path.push(String::new()),
                "*" => import.name = Some("*".to_owned()),
                "self" if !import.path.is_empty() => import.name = import.path.last().cloned(),
                word => {
                    import.path.push(word.to_owned());
                    if text(code, at + 1) != "::" {
                        import.name = Some(word.to_owned());
                    }
                }
            }
            at += 1;
            if import.name.is_some() {
                if text(code, at) == "as" {
                    import.name = Some(text(code, at + 1).to_owned());
                    at += 2;
                }
                self.imports.push(import);
                return at;
            }
        }
    }
}

fn read_folder(root: &Path, folder: &str, module: &Module, files: &mut Vec<File>) {
    let entries = fs::read_dir(root.join(folder)).into_iter().flatten();
    for name in entries.map(|it| it.unwrap().file_name().into_string().unwrap()) {
        let path = format!("{folder}/{name}");
        let stem = name.trim_end_matches(".rs");
        let mut inner = module.clone();
        inner.extend((!["lib", "main", "mod"].contains(&stem)).then(|| stem.to_owned()));
        if root.join(&path).is_dir() {
            read_folder(root, &path, &inner, files);
        } else if stem != name {
            let source = fs::read_to_string(root.join(&path)).unwrap();
            files.push(File::parse(&path, inner, &source));
        }
    }
}

/// The files of `src` and of `crates/*/src` that are not for tests alone, by path.
pub fn read(root: &Path) -> Vec<File> {
    let mut files = Vec::new();
    read_folder(root, "src", &vec!["kvstore".to_owned()], &mut files);
    for entry in fs::read_dir(root.join("crates")).into_iter().flatten() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = vec![format!("kvstore_{name}")];
        read_folder(root, &format!("crates/{name}/src"), &module, &mut files);
    }
    let tests: Vec<Module> = files.iter().flat_map(|it| it.tests.clone()).collect();
    files.retain(|file| !tests.iter().any(|it| file.module.starts_with(it)));
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}
