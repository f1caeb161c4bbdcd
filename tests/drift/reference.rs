//! The reference of the public API in `specs/reference/`, made from the `.proto` files and their comments.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::source_code_info::Location;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto, ServiceDescriptorProto,
};

const PACKAGE: &str = "mycora.v1";
const HOW: &str = "MYCORA_UPDATE=1 cargo test -p mycora-drift";

// Numbers of fields in descriptors, of which the paths of comments are made: `descriptor.proto`.
const FILE_SYNTAX: i32 = 12;
const FILE_MESSAGES: i32 = 4;
const FILE_ENUMS: i32 = 5;
const FILE_SERVICES: i32 = 6;
const MESSAGE_FIELDS: i32 = 2;
const MESSAGE_MESSAGES: i32 = 3;
const MESSAGE_ENUMS: i32 = 4;
const ENUM_VALUES: i32 = 2;
const SERVICE_METHODS: i32 = 2;

/// Makes the pages of the public API: text by file name.
pub(crate) fn pages(set: &FileDescriptorSet) -> BTreeMap<String, String> {
    let public: Vec<_> = set.file.iter().filter(|file| file.package() == PACKAGE).collect();
    let mut homes = BTreeMap::new();
    for file in &public {
        let names = file.enum_type.iter().map(|found| found.name().to_owned());
        for name in names.chain(file.message_type.iter().flat_map(names_within)) {
            homes.insert(format!(".{PACKAGE}.{name}"), page_name(file));
        }
    }
    let mut pages: BTreeMap<_, _> =
        public.iter().map(|file| (page_name(file), Page::new(file, &homes).text())).collect();
    pages.insert("README.md".to_owned(), index(&public));
    pages
}

/// Names of a message and of the types that are declared in it.
fn names_within(message: &DescriptorProto) -> Vec<String> {
    let nested = message.nested_type.iter().map(DescriptorProto::name);
    let nested = nested.chain(message.enum_type.iter().map(EnumDescriptorProto::name));
    let nested = nested.map(|name| format!("{}.{name}", message.name()));
    std::iter::once(message.name().to_owned()).chain(nested).collect()
}

fn page_name(file: &FileDescriptorProto) -> String {
    let (_, name) = file.name().rsplit_once('/').unwrap();
    format!("{}.md", name.trim_end_matches(".proto"))
}

/// The page that lists all methods.
fn index(files: &[&FileDescriptorProto]) -> String {
    let mut text = format!(
        "# Reference of the public API\n\nEvery method, message and field of `{PACKAGE}`, from the comments of \
         [`proto/`](../../proto/mycora/v1). What all methods have in common is in [api.md](../api.md), examples for several \
         languages in [clients.md](../clients.md), and who may call what in [permissions.md](../permissions.md). These pages \
         are generated: `{HOW}`.\n\n| service | method | does |\n|---|---|---|\n"
    );
    for file in files {
        let (page, comments) = (page_name(file), comments(file));
        for (at, service) in (0..).zip(&file.service) {
            for (number, method) in (0..).zip(&service.method) {
                let about = &comments[&vec![FILE_SERVICES, at, SERVICE_METHODS, number]];
                let (service, name) = (service.name(), method.name());
                let does = cell(about.split("\n\n").next().unwrap());
                writeln!(text, "| `{service}` | [`{name}`]({page}#{}) | {does} |", name.to_lowercase())
                    .unwrap();
            }
        }
    }
    text.push_str("\nTypes that several services share are in [types.md](types.md).\n");
    text
}

/// Comments of a file by the paths of what they are about.
fn comments(file: &FileDescriptorProto) -> BTreeMap<Vec<i32>, String> {
    let of_location = |location: &Location| {
        let detached = location.leading_detached_comments.first();
        let text = location.leading_comments.as_ref().or(detached)?;
        Some((
            location.path.clone(),
            text.lines().map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned(),
        ))
    };
    file.source_code_info.iter().flat_map(|info| &info.location).filter_map(of_location).collect()
}

/// A comment as the cell of a table.
fn cell(comment: &str) -> String {
    comment.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// A comment as paragraphs.
fn paragraphs(comment: &str) -> String {
    let lines = comment.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n\n")
}

/// A page that is written.
struct Page<'a> {
    file: &'a FileDescriptorProto,
    /// Pages of types by their full names.
    homes: &'a BTreeMap<String, String>,
    comments: BTreeMap<Vec<i32>, String>,
    text: String,
}

impl<'a> Page<'a> {
    fn new(file: &'a FileDescriptorProto, homes: &'a BTreeMap<String, String>) -> Self {
        Self { file, homes, comments: comments(file), text: String::new() }
    }

    fn text(mut self) -> String {
        let file = self.file;
        let name = file.name();
        let title = match &file.service[..] {
            [] => "Shared types".to_owned(),
            services => services.iter().map(ServiceDescriptorProto::name).collect::<Vec<_>>().join(", "),
        };
        let about = paragraphs(&self.comments[&vec![FILE_SYNTAX]]);
        self.line(&format!(
            "# {title}\n\n{about}\n\nGenerated from [`{name}`](../../proto/{name}): `{HOW}`.\n"
        ));
        for (at, service) in (0..).zip(&file.service) {
            self.service(&[FILE_SERVICES, at], service);
        }
        if !file.message_type.is_empty() {
            self.line("## Messages\n");
        }
        for (at, message) in (0..).zip(&file.message_type) {
            self.message(&[FILE_MESSAGES, at], message.name(), message);
        }
        if !file.enum_type.is_empty() {
            self.line("## Enumerations\n");
        }
        for (at, found) in (0..).zip(&file.enum_type) {
            self.enumeration(&[FILE_ENUMS, at], found.name(), found);
        }
        self.text.trim_end().to_owned() + "\n"
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Writes a heading and what the comment says about it.
    fn head(&mut self, heading: &str, path: &[i32]) {
        let about = self.comments.get(path).map(|comment| paragraphs(comment)).unwrap_or_default();
        self.line(&format!("{heading}\n\n{about}\n"));
    }

    /// The comment on a part of what stands at a path, as the cell of a table.
    fn about(&self, path: &[i32], part: i32, at: i32) -> String {
        self.comments.get(&[path, &[part, at]].concat()).map(|comment| cell(comment)).unwrap_or_default()
    }

    fn service(&mut self, path: &[i32], service: &ServiceDescriptorProto) {
        self.head(&format!("## Methods of {}", service.name()), path);
        for (at, method) in (0..).zip(&service.method) {
            self.method(&[path, &[SERVICE_METHODS, at]].concat(), method);
        }
    }

    fn method(&mut self, path: &[i32], method: &MethodDescriptorProto) {
        let stream = |is_stream: bool| if is_stream { "a stream of " } else { "" };
        let takes = format!("{}{}", stream(method.client_streaming()), self.link(method.input_type()));
        let gives = format!("{}{}", stream(method.server_streaming()), self.link(method.output_type()));
        self.head(&format!("### {}\n\nTakes {takes}, returns {gives}.", method.name()), path);
    }

    fn message(&mut self, path: &[i32], name: &str, message: &DescriptorProto) {
        self.head(&format!("### {name}"), path);
        if !message.field.is_empty() {
            self.line("| field | number | type | meaning |\n|---|---|---|---|");
        }
        for (at, field) in (0..).zip(&message.field) {
            let (kind, about) = (self.kind(message, field), self.about(path, MESSAGE_FIELDS, at));
            self.line(&format!("| `{}` | {} | {kind} | {about} |", field.name(), field.number()));
        }
        if !message.field.is_empty() {
            self.line("");
        }
        for (at, nested) in (0..).zip(&message.nested_type) {
            if !nested.options.as_ref().is_some_and(|options| options.map_entry()) {
                let path = [path, &[MESSAGE_MESSAGES, at]].concat();
                self.message(&path, &format!("{name}.{}", nested.name()), nested);
            }
        }
        for (at, nested) in (0..).zip(&message.enum_type) {
            let path = [path, &[MESSAGE_ENUMS, at]].concat();
            self.enumeration(&path, &format!("{name}.{}", nested.name()), nested);
        }
    }

    fn enumeration(&mut self, path: &[i32], name: &str, found: &EnumDescriptorProto) {
        self.head(&format!("### {name}"), path);
        self.line("| value | number | meaning |\n|---|---|---|");
        for (at, value) in (0..).zip(&found.value) {
            let about = self.about(path, ENUM_VALUES, at);
            self.line(&format!("| `{}` | {} | {about} |", value.name(), value.number()));
        }
        self.line("");
    }

    /// Type of a field, and how often it is there.
    fn kind(&self, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
        let is_entry = |nested: &&DescriptorProto| {
            nested.options.as_ref().is_some_and(|options| options.map_entry())
                && field.type_name().ends_with(&format!(".{}", nested.name()))
        };
        if let Some(entry) = message.nested_type.iter().find(is_entry) {
            return format!("map of {} to {}", self.plain(&entry.field[0]), self.plain(&entry.field[1]));
        }
        let plain = self.plain(field);
        match field.oneof_index {
            _ if field.label() == Label::Repeated => format!("list of {plain}"),
            Some(_) if field.proto3_optional() => format!("optional {plain}"),
            Some(at) => {
                let group = message.oneof_decl[usize::try_from(at).unwrap()].name();
                format!("{plain}, one of `{group}`")
            }
            None => plain,
        }
    }

    fn plain(&self, field: &FieldDescriptorProto) -> String {
        match field.r#type() {
            Type::Message | Type::Enum => self.link(field.type_name()),
            scalar => format!("`{}`", scalar.as_str_name().trim_start_matches("TYPE_").to_lowercase()),
        }
    }

    /// Name of a type, with a link to where it is described if that is here.
    fn link(&self, full: &str) -> String {
        let short = full.trim_start_matches('.').trim_start_matches(PACKAGE).trim_start_matches('.');
        match self.homes.get(full) {
            Some(page) => {
                let here = if *page == page_name(self.file) { "" } else { page };
                format!("[`{short}`]({here}#{})", short.to_lowercase().replace('.', ""))
            }
            None => format!("`{short}`"),
        }
    }
}
