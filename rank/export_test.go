package rank

// EarlyGroups counts the groups for which letters of other processes are kept.
func EarlyGroups(l *Local) int {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	return len(l.p.outside.early)
}

// RaceEnabled is raceEnabled for tests outside the package.
const RaceEnabled = raceEnabled
