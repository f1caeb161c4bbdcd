package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// services are those that the chart knows, with the runner.
var services = []string{
	"storage", "scheduler", "router", "runner-registry", "mycelium-gateway", "supervisor", "saga", "runner",
}

// repository is the checkout that the chart is part of.
type repository struct {
	root string
}

// facts are what code and specifications say.
type facts struct {
	programs map[string]programFacts
	// identities are the names of services that a SPIFFE id may have.
	identities []string
	arrows     []arrow
	// metrics is the page with all metrics.
	metrics string
}

// programFacts are the default ports of a service's program and its flags.
type programFacts struct {
	port, ops int32
	flags     map[string]clapFlag
}

// clapFlag is one flag as its clap definition has it.
type clapFlag struct {
	env      string
	required bool
}

func (r repository) read(path ...string) (string, error) {
	text, err := os.ReadFile(filepath.Join(append([]string{r.root}, path...)...))
	return string(text), err
}

// facts reads all of them, and lists what could not be read.
func (r repository) facts() (*facts, []string) {
	facts := &facts{programs: map[string]programFacts{}}
	var problems []string
	structs, err := r.structs()
	if err != nil {
		return facts, []string{err.Error()}
	}
	for _, service := range services {
		program, found := r.program(service, structs)
		facts.programs[service] = program
		problems = append(problems, found...)
	}
	spiffe, err := r.read("libs", "identity", "src", "spiffe.rs")
	if err != nil {
		problems = append(problems, err.Error())
	}
	for _, match := range regexp.MustCompile(`(?m)^    [A-Z]\w+ = "([a-z-]+)",$`).FindAllStringSubmatch(spiffe, -1) {
		facts.identities = append(facts.identities, match[1])
	}
	if len(facts.identities) < len(services) {
		problems = append(problems, fmt.Sprintf("libs/identity/src/spiffe.rs: only %q are found", facts.identities))
	}
	page, err := r.read("specs", "architecture.md")
	if err != nil {
		problems = append(problems, err.Error())
	}
	if facts.metrics, err = r.read("specs", "metrics.md"); err != nil {
		problems = append(problems, err.Error())
	}
	arrows, found := readArrows(page)
	facts.arrows = arrows
	return facts, append(problems, found...)
}

var (
	grpcPort   = regexp.MustCompile(`const GRPC_PORT: Option<u16> = (?:Some\((\d+)\)|None);`)
	opsPort    = regexp.MustCompile(`const OPS_PORT: u16 = (\d+);`)
	configType = regexp.MustCompile(`type Config = (?:Self::)?(\w+);`)
	adminConst = regexp.MustCompile(`const ADMIN: Option<AdminMethods>`)
)

// program reads ports and flags of a service's program from its implementation of `service::App`.
func (r repository) program(service string, structs map[string]rustStruct) (programFacts, []string) {
	var facts programFacts
	for _, file := range []string{"process.rs", "app.rs"} {
		code, err := r.read("services", service, "src", file)
		if err != nil || !opsPort.MatchString(code) {
			continue
		}
		if port := grpcPort.FindStringSubmatch(code); port != nil {
			_, _ = fmt.Sscan(port[1], &facts.port)
		}
		_, _ = fmt.Sscan(opsPort.FindStringSubmatch(code)[1], &facts.ops)
		names := []string{"libs/service.CommonFlags"}
		if config := configType.FindStringSubmatch(code); config != nil {
			names = append(names, "services/"+service+"."+config[1])
		}
		if adminConst.MatchString(code) {
			names = append(names, "libs/service.AdminFlags")
		}
		facts.flags = map[string]clapFlag{}
		var problems []string
		for _, name := range names {
			problems = append(problems, collect(name, structs, facts.flags)...)
		}
		return facts, problems
	}
	return facts, []string{"services/" + service + ": no implementation of service::App is found"}
}

// rustStruct is a struct whose fields are flags, or further structs of flags.
type rustStruct struct {
	flags     map[string]clapFlag
	flattened []string
}

var (
	structHead = regexp.MustCompile(`(?m)^(?:pub(?:\(crate\))? )?struct (\w+) \{$`)
	fieldLine  = regexp.MustCompile(`^\s*(?:pub(?:\(crate\))? )?(\w+): (.+),$`)
	longName   = regexp.MustCompile(`\blong = "([a-z0-9-]+)"`)
	longBare   = regexp.MustCompile(`\blong\b`)
	envName    = regexp.MustCompile(`\benv = "([A-Z_]+)"`)
)

// structs reads the structs of flags of all crates, by crate and name.
func (r repository) structs() (map[string]rustStruct, error) {
	found := map[string]rustStruct{}
	for _, group := range []string{"libs", "services"} {
		crates, err := os.ReadDir(filepath.Join(r.root, group))
		if err != nil {
			return nil, err
		}
		for _, crate := range crates {
			source := filepath.Join(r.root, group, crate.Name(), "src")
			err := filepath.WalkDir(source, func(path string, entry os.DirEntry, err error) error {
				if err != nil || entry.IsDir() || filepath.Ext(path) != ".rs" {
					return err
				}
				code, err := os.ReadFile(path)
				if err == nil {
					readStructs(string(code), group+"/"+crate.Name(), found)
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

func readStructs(code, crate string, found map[string]rustStruct) {
	for _, at := range structHead.FindAllStringSubmatchIndex(code, -1) {
		body := code[at[1]:]
		if end := strings.Index(body, "\n}"); end >= 0 {
			body = body[:end]
		}
		if strings.Contains(body, "#[arg(") || strings.Contains(body, "#[command(flatten)]") {
			found[crate+"."+code[at[2]:at[3]]] = readFields(body)
		}
	}
}

// readFields reads the fields of one struct, each behind its attribute.
func readFields(body string) rustStruct {
	result := rustStruct{flags: map[string]clapFlag{}}
	attribute := ""
	for _, line := range strings.Split(body, "\n") {
		trimmed := strings.TrimSpace(line)
		field := fieldLine.FindStringSubmatch(line)
		isOpen := strings.Count(attribute, "(") != strings.Count(attribute, ")")
		switch {
		case strings.HasPrefix(trimmed, "//"):
		case strings.HasPrefix(trimmed, "#["), isOpen:
			attribute += trimmed
		case field != nil && strings.Contains(attribute, "command(flatten)"):
			parts := strings.Split(field[2], "::")
			result.flattened = append(result.flattened, parts[len(parts)-1])
			attribute = ""
		case field != nil:
			if name := flagName(attribute, field[1]); name != "" {
				result.flags[name] = readFlag(attribute, field[2])
			}
			attribute = ""
		}
	}
	return result
}

func flagName(attribute, field string) string {
	if named := longName.FindStringSubmatch(attribute); named != nil {
		return "--" + named[1]
	}
	if longBare.MatchString(attribute) {
		return "--" + strings.ReplaceAll(field, "_", "-")
	}
	return ""
}

func readFlag(attribute, kind string) clapFlag {
	flag := clapFlag{}
	if env := envName.FindStringSubmatch(attribute); env != nil {
		flag.env = env[1]
	}
	mayLack := strings.HasPrefix(kind, "Option<") || strings.HasPrefix(kind, "Vec<") || kind == "bool"
	flag.required = !mayLack && !strings.Contains(attribute, "default_value")
	return flag
}

// collect gathers the flags of a struct and of those in it.
func collect(name string, structs map[string]rustStruct, flags map[string]clapFlag) []string {
	found, known := structs[name]
	if !known {
		return []string{name + ": no such struct of flags is found"}
	}
	maps.Copy(flags, found.flags)
	var problems []string
	crate, _, _ := strings.Cut(name, ".")
	for _, inner := range found.flattened {
		if _, own := structs[crate+"."+inner]; own {
			problems = append(problems, collect(crate+"."+inner, structs, flags)...)
			continue
		}
		var places []string
		for _, place := range slices.Sorted(maps.Keys(structs)) {
			if strings.HasSuffix(place, "."+inner) {
				places = append(places, place)
			}
		}
		if len(places) != 1 {
			problems = append(problems, fmt.Sprintf("%s: the struct %s is found in %q", name, inner, places))
			continue
		}
		problems = append(problems, collect(places[0], structs, flags)...)
	}
	return problems
}
