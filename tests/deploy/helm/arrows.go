package main

import (
	"fmt"
	"regexp"
	"strings"
)

// arrow is one call of "Who calls whom": both ends in the words of the chart.
type arrow struct {
	from, to string
}

// Ends of calls that are no services of the chart.
const (
	clients          = "clients"
	admin            = "admin"
	otherGateways    = "gateways of other coordinators"
	daemon           = "the Mycelium daemon"
	opsReaders       = "readers of ops ports"
	collector        = "an OTLP collector"
	supervisorsRedis = "the supervisor's Redis"
	coordinatorRedis = "the coordinator's Redis"
	sagaRedis        = "the Redis of sagas"
	nats             = "NATS"
	aggregates       = "gateways of aggregates"
	outsideWorld     = "the outside world"
)

// everyProcess is each container that runs a program of ours.
const everyProcess = "every process"

// ends are the words of specs/architecture.md for the ends of calls, with ours.
var ends = map[string]string{
	"client":                         clients,
	"admin":                          admin,
	"scheduler":                      "scheduler",
	"each scheduler replica":         "scheduler",
	"router":                         "router",
	"storage":                        "storage",
	"runner-registry":                "runner-registry",
	"gateway":                        "mycelium-gateway",
	"gateways of other coordinators": otherGateways,
	"supervisor":                     "supervisor",
	"runner":                         "runner",
	"saga":                           "saga",
	"the Mycelium daemon":            daemon,
	"the supervisor's Redis":         supervisorsRedis,
	"NATS JetStream":                 nats,
	"gateways of aggregates":         aggregates,
	"the outside world":              outsideWorld,
	"readers of ops ports":           opsReaders,
	"every process":                  everyProcess,
	"an OTLP collector":              collector,
}

// owners are the rows of "Who there is" that say who calls a Redis: the row's process, and words that stand in it.
var owners = []struct{ process, words, redis string }{
	{"`storage`", "the coordinator's Redis: only storage touches it", coordinatorRedis},
	{"`saga`", "or in Redis", sagaRedis},
}

// readArrows reads the calls from the two tables of specs/architecture.md. A row in other words than these is a problem.
func readArrows(page string) ([]arrow, []string) {
	var arrows []arrow
	var problems []string
	for _, row := range rows(page, "## Who calls whom") {
		for _, from := range split(row[0], `,`) {
			for _, to := range split(row[1], `[,;]`) {
				one := arrow{ends[from], ends[to]}
				if one.from == "" || one.to == "" {
					problems = append(problems, fmt.Sprintf("specs/architecture.md: what is the call %q → %q?", from, to))
					continue
				}
				arrows = append(arrows, one)
			}
		}
	}
	if len(arrows) == 0 {
		problems = append(problems, "specs/architecture.md: there is no table below \"Who calls whom\"")
	}
	for _, owner := range owners {
		found := false
		for _, row := range rows(page, "## Who there is") {
			found = found || row[0] == owner.process && strings.Contains(row[1], owner.words)
		}
		if !found {
			problems = append(problems, fmt.Sprintf("specs/architecture.md: the row of %s does not say %q", owner.process, owner.words))
		}
		arrows = append(arrows, arrow{strings.Trim(owner.process, "`"), owner.redis})
	}
	return arrows, problems
}

// rows reads the table below a heading, without its head.
func rows(page, heading string) [][]string {
	_, part, _ := strings.Cut(page, "\n"+heading+"\n")
	part, _, _ = strings.Cut(part, "\n## ")
	var rows [][]string
	for _, line := range strings.Split(part, "\n") {
		if cells := strings.Split(strings.Trim(line, "|"), "|"); strings.HasPrefix(line, "|") && len(cells) >= 3 {
			for at := range cells {
				cells[at] = strings.TrimSpace(cells[at])
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) < 2 {
		return nil
	}
	return rows[2:]
}

func split(cell, separators string) []string {
	parts := regexp.MustCompile(separators).Split(cell, -1)
	for at := range parts {
		parts[at] = strings.TrimSpace(parts[at])
	}
	return parts
}
